"""SLAs, contracts and incidents: what is measured, judged, blamed, told and shown of them (rings 1 and 2)."""
