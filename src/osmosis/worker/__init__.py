"""What runs jobs on a machine: it asks a platform for work, starts each job as a process, and says how it ended.

It holds a URL and a token, and no database, no key and no secret of a run: a job asks for those itself, by the lease it
is given. The platform's own worker is the same, with a desk that needs no HTTP.
"""
