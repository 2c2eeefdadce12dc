"""`osmosis test`: an agent on rows, once each, or step by step; what is shown is `show`."""
