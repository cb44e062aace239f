"""Prints the command lines of a README that run scripts of CleanRL or Cleanba: `make.py README.md`."""

import re
import sys

with open(sys.argv[1]) as file:
    text = file.read()
for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        if re.search(r"\.py(\s|$)", line) and not line.startswith(("#", "import")):
            print(line.strip())
