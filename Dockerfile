# The image of a worker: Python, git and what Shipway needs. It holds no repository: mount a git clone at /srv/shipway,
# writable for user 1000 (served runs work in clones of it, share its cache and leave their result there on a branch).
#
#   docker build --tag shipway:0.1.0 .
#   docker run --volume "$PWD":/srv/shipway --env PREFECT_API_URL=http://...:4200/api shipway:0.1.0
#
# An index of your own for pip, with its password in no layer: docker build --secret id=pip,src=pip.conf ...
FROM python:3.11-slim

# Debian's versions follow the base image. tini ends what a killed run leaves behind, which process 1 must do.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git tini \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory /srv/shipway \
    && git config --system --add safe.directory /srv/shipway/.git \
    && useradd --uid 1000 --create-home shipway \
    && install --directory --owner shipway /srv/shipway

WORKDIR /opt/shipway
COPY constraints.txt pyproject.toml README.md LICENSE ./
# First and pinned, in a layer that a change of the code leaves as it is.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir --disable-pip-version-check "$(grep '^torch==' constraints.txt)"
COPY flows ./flows
COPY stages ./stages
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt --editable .

# The mounted repository's own `flows` and `stages` come before those of the image. Nothing is reported to anybody.
ENV PYTHONPATH=/srv/shipway \
    PYTHONUNBUFFERED=1 \
    DO_NOT_TRACK=1 \
    DVC_NO_ANALYTICS=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false
WORKDIR /srv/shipway
USER 1000
ENTRYPOINT ["tini", "--"]
CMD ["prefect", "worker", "start", "--pool", "shipway-process", "--type", "process"]
