# osd for serving and for training; compose.yaml lays several out. Built for the CPU unless TORCH_INDEX names another
# index of torch wheels: docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 .
FROM python:3.12-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /opt/osd

COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY storage storage
COPY router router
COPY osd osd
COPY trainer trainer
COPY migrations migrations
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==$(sed -n 's/^torch==//p' constraints.txt) \
 && pip install --no-cache-dir -c constraints.txt '.[postgres,redis,s3,encryption,serve]'

RUN useradd --create-home --uid 10001 osd && mkdir /data && chown osd /data
USER osd
ENV XDG_CACHE_HOME=/data/cache OSD_STORAGE__DIRECTORY=/data/osd
VOLUME /data
ENTRYPOINT ["osd"]
CMD ["doctor"]
