"""The bodies of the platform's API, contract B: one record for each.

Services build them, routes declare them, the client returns them and `osmosis schema` prints them. The spellings that
other servers of this contract use are accepted here and nowhere else. Decides nothing and computes only what a body
says of itself.
"""
