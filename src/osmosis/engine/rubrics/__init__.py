"""Running rubrics over files: rubric files, recorded conversations, the run, its report; and rubrics as scorers."""
