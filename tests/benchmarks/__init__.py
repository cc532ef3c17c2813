"""`make bench`: what a guarded call costs, as ratios to the peers' and to plain calls (docs/performance.md).

Not tests: pytest collects nothing here, and nothing here fails a build. The targets stand in `report`.
"""
