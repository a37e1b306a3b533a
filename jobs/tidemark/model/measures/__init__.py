"""The measures of SLAs, each in a file of this folder."""
