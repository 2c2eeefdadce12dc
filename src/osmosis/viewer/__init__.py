"""The pages of runs, for any store of runs. They work without JavaScript and load nothing from other sites."""
