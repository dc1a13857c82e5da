# Serves an explainer over HTTP, with the page: the one of `avcg demo`, or your own.
#
#   docker build -t avcg .
#   docker run --rm -p 8000:8000 -e AVCG_TOKEN=secret avcg
#   docker run --rm -p 8000:8000 -e AVCG_TOKEN=secret -v "$PWD/recourse:/mine:ro" avcg avcg serve /mine --host 0.0.0.0
FROM python:3.11-slim AS made
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY avcg avcg
RUN python -m venv /opt/avcg \
 && /opt/avcg/bin/pip install --no-cache-dir torch -c constraints.txt \
 && PIP_CONSTRAINT=constraints.txt /opt/avcg/bin/pip install --no-cache-dir '.[serve,onnx,plots]' \
 && /opt/avcg/bin/avcg demo --save /recourse --picture /tmp/demo.png

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 avcg
COPY --from=made /opt/avcg /opt/avcg
COPY --from=made /recourse /recourse
ENV PATH=/opt/avcg/bin:$PATH
USER avcg
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=3)"]
CMD ["avcg", "serve", "/recourse", "--rows", "/recourse/rows.csv", "--host", "0.0.0.0"]
