"""Answers as a recorded tool would: `stand_in.py ANSWERS.json ARGUMENT…`. Run by the stand-ins that layout.py makes."""

import fnmatch
import json
import os
import re
import sys
import time


def say(answer):
    if isinstance(answer, str):
        answer = {"out": answer}
    if "german" in answer and os.environ.get("LC_ALL") != "C":
        answer = answer["german"]
    if answer.get("hangs"):
        time.sleep(600)
    sys.stdout.write(answer.get("out", ""))
    sys.stderr.write(answer.get("err", ""))
    sys.stdout.flush()
    os._exit(answer.get("exit", 0))


def smi(about, arguments):
    """nvidia-smi: `csv` has the columns that this driver knows, as it prints them with their head."""
    line = " ".join(arguments)
    if "always" in about:
        say(about["always"])
    for pattern, answer in about.get("answers", {}).items():
        if fnmatch.fnmatchcase(line, pattern):
            say(answer)
    if line.startswith("--query-compute-apps="):
        say(about.get("apps", ""))
    if not line.startswith("--query-gpu="):
        say({"out": f"ERROR: Option {arguments[0]} is not recognized. Please run 'nvidia-smi -h'.\n", "exit": 2})
    head, *rows = [row for row in about["csv"].splitlines() if row.strip()]
    known = [re.sub(r" \[.*", "", name) for name in head.split(", ")]
    asked = arguments[0].partition("=")[2].split(",")
    for name in asked:
        if name not in known:
            say({"out": f'Field "{name}" is not a valid field to query.\n\n', "exit": 2})
    chosen = [word[5:].split(",") for word in arguments if word.startswith("--id=")]
    if "handle" in about and not chosen:
        say({"out": about["handle"], "exit": 255})
    text = about.get("before", "")
    for row in rows:
        words = row.split(", ")
        assert len(words) == len(known), (row, head)
        values = dict(zip(known, words, strict=True))
        place = values["pci.bus_id"].lower()[-12:]
        if not chosen or place in chosen[0]:
            text += ", ".join(values[name] for name in asked) + "\n"
    say({"out": text + about.get("after", ""), "exit": about.get("exit", 0)})


with open(sys.argv[1]) as file:
    answers = json.load(file)
if "smi" in answers:
    smi(answers["smi"], sys.argv[2:])
for pattern, answer in answers.items():
    if fnmatch.fnmatchcase(" ".join(sys.argv[2:]), pattern):
        say(answer)
say({"err": "no such option\n", "exit": 1})
