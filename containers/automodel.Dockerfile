# The image of recipes on NVIDIA NeMo AutoModel. Versions stand in images.yaml; `muster image build automodel` hands them in.
# It builds on any base that has python3, pip and bash; tests take a small one.
ARG BASE_IMAGE
# hadolint ignore=DL3006
FROM ${BASE_IMAGE}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# Empty: not in this image.
ARG EFA_INSTALLER_VERSION=
ARG AWS_OFI_NCCL_VERSION=
ARG GDRCOPY_VERSION=
COPY fabric.sh /opt/muster/
RUN bash /opt/muster/fabric.sh

ARG PROVIDES=
ARG PACKAGES=
COPY packages.sh /opt/muster/
# The import: what is proven here is not found missing on a thousand GPUs.
RUN bash /opt/muster/packages.sh \
    && python3 -c 'import torch, yaml, tokenizers, sentencepiece; from nemo_automodel import NeMoAutoModelForCausalLM'

# NVIDIA_*: without both the container has no GPU. PYTORCH_VERSION: without it Enroot's PyTorch hook
# sets no RANK. PYTHONNOUSERSITE: packages in somebody's home are not ours.
ARG PYTORCH_VERSION
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTORCH_VERSION=${PYTORCH_VERSION} \
    PYTHONNOUSERSITE=1 \
    PYTHONUNBUFFERED=1

WORKDIR /workspace
USER 1000:1000
CMD ["/bin/bash"]
