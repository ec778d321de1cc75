"""Turn the text on standard input into an SVG of a terminal on standard output.

The picture in README.md: pal demo | python docs/picture.py > docs/_static/demo.svg
"""

import io
import sys

from rich.console import Console
from rich.text import Text

console = Console(record=True, width=112, file=io.StringIO())
for line in sys.stdin:
    text = Text(line.rstrip())
    text.highlight_regex(r"^\d\. .*", "bold cyan")
    text.highlight_regex(r"outlier\S*|\+[1-9]\d\.\d %", "bold yellow")
    text.highlight_regex(r"^(Mean completion.*)", "bold green")
    console.print(text, highlight=False)
sys.stdout.write(console.export_svg(title="make demo"))
