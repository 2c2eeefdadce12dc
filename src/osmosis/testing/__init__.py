"""Fakes and helpers for tests of agents and of osmosis itself: public, small, one file each. Product code never
imports them.
"""
