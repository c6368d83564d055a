"""Text that tries to break out of a page, a terminal or a table."""

HOSTILE = (
    "<script>alert(1)</script></style></pre></svg>]]><img src=x onerror=alert(2)>",
    '" onmouseover="alert(3)" x=\'y\'',
    "\x1b[2J\x9b31m\x07\x00\ud800\r",
    "a\u2028b\u2029c\u202egnorw\u200b",
    "\\input{/etc/passwd} $x_1^2$ & % # ~ {a} [b] *c*",
    "| [link](javascript:alert(4)) `code` **bold** <b>\n\n# heading\n",
    "\u4f60\u597d",
)


EVIL = "".join(HOSTILE)
