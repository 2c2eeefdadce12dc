"""One evaluation on this machine: a request is prepared (all that can be wrong is found), then run, then it is a `Run`.

`evaluate` is its Python face; the command line is another caller. It knows no terminal, asks nothing by itself and
prints nothing: who starts a run brings a `Watcher` and answers for questions. Nothing here talks to a platform.
"""
