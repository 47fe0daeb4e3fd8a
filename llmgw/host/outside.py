"""What weights and engines are fetched from. A control plane without any of it still serves what it has."""

from __future__ import annotations

from llmgw.core.findings.rules import listed, quoted
from llmgw.host.checks import Here, Said, Sentence, check


@check("note", "Nothing, where it is not needed; else see the network, a proxy (HTTPS_PROXY), or name a mirror.")
def place_unreachable(here: Here) -> Said:
    """A place that weights or engines are fetched from does not answer."""
    failed = [answer for answer in here.answers if answer.error and not answer.untrusted]
    if len(failed) == len(here.answers):
        return None  # cut_off says so
    found: list[Sentence] = []
    for answer in failed:
        found.append(f"{answer.place} does not answer: {quoted(answer.error or '', 120)}")
    return found


@check("warning", "See the network and its proxy (HTTPS_PROXY); PIP_INDEX_URL and HF_ENDPOINT name mirrors.")
def cut_off(here: Here) -> Said:
    """Nothing answers that weights and engines are fetched from: nodes get only what the mirror holds already."""
    failed = [answer for answer in here.answers if answer.error]
    if not failed or len(failed) < len(here.answers):
        return None
    why = quoted(failed[0].error or "", 120)
    return f"nothing outside answers: {listed(answer.place.name for answer in failed)} ({why})"


@check("warning", "Name the bundle with that authority: SSL_CERT_FILE=/path/to/bundle.pem")
def certificate_untrusted(here: Here) -> Said:
    """Something between here and there answers with a certificate of its own: a proxy that looks into what passes."""
    return [
        f"the certificate of {answer.place} is not trusted: {quoted(answer.error or '', 120)}"
        for answer in here.answers
        if answer.untrusted
    ]
