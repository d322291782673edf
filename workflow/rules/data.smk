localrules:
    download,


rule download:
    output:
        PATHS.raw("{raw}") / "source.json",
    params:
        code=lambda w: study.code("dataset", RAW[w.raw].dataset) if RAW[w.raw].synthetic else "",
        mirror=lambda w: f"--mirror '{config['mirror']}'" if config["mirror"] else "",
    log:
        "results/logs/download/{raw}.log",
    retries: 2
    conda:
        "../../envs/data.yaml"
    shell:
        f"python -m fedshift download {STUDY} {{params.mirror}} {{wildcards.raw}} > {{log:q}} 2>&1"


rule prepare:
    input:
        source=lambda w: PATHS.raw(DATA[w.data].raw) / "source.json",
        own=lambda w: DATA[w.data].dataset.inputs(),
    output:
        images=PATHS.data("{data}") / "images.npy",
        samples=PATHS.data("{data}") / "samples.parquet",
        card=PATHS.data("{data}") / "card.json",
    params:
        code=lambda w: study.code("prepare", DATA[w.data].dataset, *DATA[w.data].prepare),
    log:
        "results/logs/prepare/{data}.log",
    benchmark:
        "results/benchmarks/prepare/{data}.tsv"
    threads: 8
    conda:
        "../../envs/data.yaml"
    shell:
        f"python -m fedshift prepare {STUDY} {{wildcards.data}} --threads {{threads}} > {{log:q}} 2>&1"


rule partition:
    input:
        samples=lambda w: PATHS.data(PARTITIONS[w.partition].data.id) / "samples.parquet",
    output:
        PATHS.partition("{partition}"),
    params:
        code=study.code("partition"),
    log:
        "results/logs/partition/{partition}.log",
    conda:
        "../../envs/data.yaml"
    shell:
        f"python -m fedshift partition {STUDY} {{wildcards.partition}} > {{log:q}} 2>&1"
