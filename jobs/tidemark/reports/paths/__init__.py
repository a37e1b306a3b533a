"""Critical paths: which operators made a streaming window late.

Read `windows`, then `solver`, `window_paths` and `physical_path`; `report` puts them together for the reports, and
`live_path` for the window that matters now.
"""
