"""Lists strings that programs may obey instead of treating as text.

A lone surrogate is not among them: neither UTF-8 nor Arrow has one, so that no table can.
"""

from __future__ import annotations

FORGED = "2026-01-01 12:00:00,000 ERROR tidemark.stream forged"
"""Pattern of a line of a driver's log."""

HOSTILE = {
    "SQL quote": "x' OR '1'='1",
    "SQL statement": "x'); DROP TABLE changes; --",
    "SQL identifier": 'x" AS SELECT 1; DROP VIEW changes; --',
    "SQL union": "x' UNION ALL SELECT path FROM glob('/etc/*') /*",
    "HTML tag": "</title></style></td></table><b>owned</b><!--",
    "HTML attribute": '"><img src="http://127.0.0.1:9/owned.png" onerror="document.title = \'owned\'">',
    "HTML attribute without a quote": "x' onmouseover=alert(1) style=x:expression(1) y='",
    "HTML entity": "&lt;b&gt; &#60;script&#62; &amp; $x^2$",
    "script": "<script>document.title = 'owned'; fetch('http://127.0.0.1:9/owned')</script>",
    "SVG": "</title></style></svg><svg onload=\"document.title = 'owned'\">",
    "CDATA": "]]></desc><svg/onload=alert(1)>",
    "link with script": "javascript:alert(document.domain)//",
    "markdown link": "[owned](javascript:alert(1)) **bold** `code`",
    "markdown image": "![owned](http://127.0.0.1:9/owned.png)",
    "Slack mention": "<!channel> <@U012AB3CD> @here",
    "Slack link": "<http://127.0.0.1:9/|https://example.org>",
    "CSV formula =": '=HYPERLINK("http://127.0.0.1:9/","owned")',
    "CSV formula +": "+1+cmd|' /C calc'!A0",
    "CSV formula -": "-2+3+cmd|' /C calc'!A0",
    "CSV formula @": "@SUM(1+1)*cmd|' /C calc'!A0",
    "CSV formula after a tab": "\t=1+1",
    "CSV formula after a return": "\r=1+1",
    "CSV quote": 'a","b"\r\n"c',
    "ANSI colour": "\x1b[31mred\x1b[2J\x1b[1A\x1b[2K",
    "ANSI link": "\x1b]8;;http://127.0.0.1:9/\x1b\\https://example.org\x1b]8;;\x1b\\",
    "ANSI title": "\x1b]0;owned\x07",
    "bell and backspaces": "\x07harmless\x08\x08\x08\x7f",
    "C1 controls": "\x9b31m\x9d0;owned\x9c\x85\x90",
    "log line": f"x\r\n{FORGED}",
    "lines of other kinds": f"x\n{FORGED}\x0b{FORGED}\u2028{FORGED}\u2029{FORGED}\x85{FORGED}",
    "return over a line": f"x\r{FORGED}",
    "mail header": "x\r\nBcc: all@example.org\r\n\r\n<b>owned</b>",
    "path up": "../../../../etc/passwd",
    "path up, escaped": "%2e%2e%2f..%5c..\\..\\etc\\passwd",
    "absolute path": "/etc/passwd",
    "NUL": "x\x00.toml",
    "Jinja": "{{ 1234 * 5678 }}{% raw %}{# #}",
    "Jinja object": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "format": "{0.__class__.__init__.__globals__} {x!r:>9}",
    "percent": "%s %n %(name)s %99999999d",
    "shell": "$(touch owned) `touch owned` ; touch owned | tee owned && touch owned > owned",
    "option": "--help",
    "JSON": '","state":"forged","\\u0022',
    "TOML": '"\n[operators.forged]\nkind = "map',
    "right to left": "\u202eemorp\u202c \u2066abc\u2069",
    "zero width": "a\u200bb\u200d\ufeffc\u00ad",
    "homoglyph": "\u0430dmin \u2215etc\u2215",
    "emoji": "\U0001f469\u200d\U0001f680 \U0001f3f4\U000e0067\U000e007f",
    "unprintable": "\U000e0001\ue000\uffff\ufffe",
    "very long": "A" * 2_000,
}
"""By what each is meant for."""
