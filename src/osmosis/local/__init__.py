"""One evaluation on this machine: a request is prepared (all problems are found), then run, then it is a `Run`."""
