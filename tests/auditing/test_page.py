"""The page of an audit, read back."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
from advice import SPRING

from avcg import BlackBox, audit


class Page(HTMLParser):
    """Open tags are closed in their order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


class TestPage:
    def test_it_is_whole_and_needs_nothing(self, found):
        text = found.to_html("housing")
        page = Page()
        page.feed(text)
        page.close()
        assert page.open == []
        assert not {"script", "link", "img", "iframe"} & set(page.tags)
        assert not re.search(r"https?:|//|@import|url\(", text)
        total, words = found.summary(), " ".join("".join(page.text).split())
        assert (
            f"{total['holds']} of {total['told']} answers still hold ({100 * total['share']:.0f} %, 95 % int" in words
        )
        assert page.tags.count("h3") == total["lost"]
        assert f"{total['replaced']} of the lost ones have a replacement" in words
        for heading in ("By housing", "By column to change", "By number of columns to change", "What this means"):
            assert heading in words

    def test_what_users_wrote_is_escaped(self, delivered):
        nasty = "<b>x</b>"
        swap = {"rent": nasty}
        rows, stood = (
            frame.replace({"housing": swap}).rename(columns={"income": "in<i>come"})
            for frame in (delivered.factuals, delivered.frame)
        )
        model = BlackBox(lambda r: (r["in<i>come"] > 60) * 1.0, stood)
        result = audit(replace(delivered, factuals=rows, answers=stood), {"<script>": model})
        text = result.to_html("housing")
        assert nasty not in text
        assert "&lt;b&gt;x&lt;/b&gt;" in text
        assert "in<i>come" not in text
        page = Page()
        page.feed(text)
        assert not {"b", "i", "script"} & set(page.tags)
        assert "&lt;script&gt;" in text
        assert nasty not in result._repr_html_()

    def test_a_long_list_is_cut_and_says_so(self, delivered):
        place = np.arange(50).repeat(5)
        rows, stood = (frame.iloc[place].reset_index(drop=True) for frame in (delivered.factuals, delivered.frame))
        names = ("target", "statuses", "probability", "probability_before", "distance", "changed", "repeated")
        many = replace(
            delivered,
            factuals=rows,
            answers=stood,
            certificate=None,
            **{n: getattr(delivered, n)[place] for n in names},
        )
        result = audit(many, BlackBox(lambda r: np.zeros(len(r)), SPRING.X))
        text, lost = result.to_html(), result.summary()["lost"]
        assert text.count("<h3>") == 200
        assert f"And {lost - 200} more lost answers" in text
