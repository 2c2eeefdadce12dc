"""`osmosis view`: the runs of this machine in a browser, from their journals, without a platform. Reads what runs wrote
and changes no rollout.
"""
