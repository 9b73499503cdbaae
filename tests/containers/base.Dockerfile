# A base for tests: torch for CPUs, as NVIDIA's base has one for GPUs. `muster image build --base` puts an image on it.
ARG BASE_IMAGE
# hadolint ignore=DL3006
FROM ${BASE_IMAGE}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

ARG PROVIDES
# pip is started out of its own wheel: the base below has none.
RUN pip=$(echo /tmp/muster-wheels/pip-*.whl) \
    && python3 "$pip/pip" install --no-cache-dir --no-index --find-links /tmp/muster-wheels pip ${PROVIDES}
