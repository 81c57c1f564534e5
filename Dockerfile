# shardctl in a container: docker build -t shardctl . && docker run --rm -v "$PWD:/data" shardctl convert photos out
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
ARG EXTRAS=images,llm,cloud
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/shardctl-*.whl)${EXTRAS:+[$EXTRAS]}" && rm -r /wheels
RUN useradd --create-home shardctl && mkdir /data && chown shardctl /data
USER shardctl
WORKDIR /data
ENTRYPOINT ["shardctl"]
CMD ["--help"]
