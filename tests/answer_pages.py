"""Pages of answers, read back; and loans to answer."""

from html.parser import HTMLParser

from avcg import toys

LOANS = toys.loans(n=300)


class Page(HTMLParser):
    """A page that was read: well-formed, with its tables, its words by section, and what its pictures say."""

    VOID = ("meta", "img")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.tables, self.sections, self.words = [], [], [], {}, {}, []
        self.section, self.cell = None, None

    @classmethod
    def of(cls, text):
        page = cls()
        page.feed(text)
        page.close()
        assert page.open == []
        return page

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *one) for one in attrs]
        if tag == "h2":
            self.section = dict(attrs)["id"]
            self.tables[self.section] = []
        if tag == "tr":
            self.tables[self.section].append([])
        if tag in ("td", "th"):
            self.cell = []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.tables[self.section][-1].append(" ".join("".join(self.cell).split()))
            self.cell = None

    def handle_data(self, data):
        self.words.append(data)
        self.sections.setdefault(self.section, []).append(data)
        if self.cell is not None and "title" not in self.open:
            self.cell.append(data)

    def text(self, section=None):
        return " ".join("".join(self.words if section is None else self.sections[section]).split())

    def lines(self, section):
        """By the first cell, the others, without heads."""
        return {line[0]: line[1:] for line in self.tables[section][1:]}
