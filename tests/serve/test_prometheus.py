"""What is counted, and what is not told."""

import re

from served import SECRET, explain, request

from avcg.serve.app import create_app


class TestMetrics:
    LINE = re.compile(r'^(avcg_\w+?)(\{(\w+="[^"\\\n]*")(,\w+="[^"\\\n]*")*\})? (\d+(\.\d+)?(e[+-]\d+)?)$')

    def test_they_are_what_prometheus_reads(self, engine, row):
        app = create_app(engine)
        explain(app, rows=[row, row], n=2)
        explain(app, rows=[])
        request(app, "GET", f"/{SECRET}")
        found = request(app, "GET", "/metrics")
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert SECRET not in found.text
        values, kinds = {}, {}
        for line in found.text.splitlines():
            if line.startswith("# TYPE"):
                _, _, name, kind = line.split(" ")
                kinds[name] = kind
            elif not line.startswith("# HELP"):
                assert self.LINE.match(line), line
                name, _, value = line.rpartition(" ")
                assert name not in values
                values[name] = float(value)
                family = re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name)
                assert family in kinds or name.partition("{")[0] in kinds
        assert values['avcg_requests_total{endpoint="/explain",status="200"}'] == 1
        assert values['avcg_requests_total{endpoint="/explain",status="422"}'] == 1
        assert values['avcg_requests_total{endpoint="other",status="404"}'] == 1
        assert values["avcg_rows_total"] == 2
        assert sum(value for name, value in values.items() if name.startswith("avcg_answers_total")) == 4
        buckets = [value for name, value in values.items() if 'bucket{endpoint="/explain"' in name]
        assert buckets == sorted(buckets)
        assert buckets[-1] == values['avcg_request_seconds_count{endpoint="/explain"}'] == 2
        assert values["avcg_uptime_seconds"] >= 0
