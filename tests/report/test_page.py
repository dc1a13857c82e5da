"""The page as a document: whole, safe, and the same for the same answers."""

import re
from dataclasses import replace

import numpy as np
from answer_pages import Page

from avcg.report.answers_page import render


class TestPage:
    def test_it_needs_nothing(self, answers, recourse):
        text = render(answers, recourse, by="housing")
        assert not re.search(r"https?:|//|@import|url\(|src=", text)
        page = Page.of(text)
        assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
        assert not [one for one in page.attributes if one[1].startswith("on")]

    def test_the_same_twice(self, answers, recourse):
        assert render(answers, recourse, by="months") == render(answers, recourse, by="months")

    def test_everything_can_be_read_aloud(self, page):
        assert page.tags.count("svg") == sum(one == ("svg", "role", "img") for one in page.attributes)
        assert page.tags.count("title") == page.tags.count("svg") + 1
        charts = sum(one[:2] == ("svg", "class") and one[2] in ("chart", "half", "small") for one in page.attributes)
        assert page.tags.count("desc") == charts == 8
        heads = sum(tag == "th" for tag in page.tags)
        assert heads == sum(one[:2] == ("th", "scope") for one in page.attributes)
        levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h\d", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert max(np.diff(levels)) <= 1

    def test_what_users_wrote_is_escaped(self, answers):
        nasty = "<b onload=alert(1)>x</b>"
        parts = [
            frame.replace({"housing": {"rent": nasty, "own": "</style><script>"}})
            .rename(columns={"income": "in<i>come", "owns": "<script>"})
            .set_axis([f"<u>{i}" for i in range(120)])
            for frame in (answers.factuals, answers.frame)
        ]
        target = np.full(120, "<em>yes")
        page_of = replace(answers, factuals=parts[0], answers=parts[1], target=target)
        for by in ("housing", "<script>"):
            text = render(page_of, by=by, title="<h1>Hello")
            page = Page.of(text)
            assert not {"b", "i", "u", "em", "script"} & set(page.tags)
            assert page.tags.count("h1") == 1
            assert nasty not in text
            shown = {"in<i>come", "<u>7", "<em>yes", "<h1>Hello", *([nasty] if by == "housing" else [])}
            assert shown <= set(map(str.strip, page.words)) | set(
                re.findall(r"<em>yes|in<i>come|<h1>Hello", page.text())
            )

    def test_long_values_are_cut(self, answers):
        rows, stood = (frame.assign(housing="z" * 500) for frame in (answers.factuals, answers.frame))
        text = render(replace(answers, factuals=rows, answers=stood), by="housing")
        assert "z" * 81 not in text
        assert "z" * 79 + "…" in text
