# On a cluster, these run where the workflow was started: one needs the network, the other takes seconds.
localrules:
    download,
    partition,


rule download:
    output:
        PATHS.raw("{raw}") / "source.json",
    log:
        "results/logs/download/{raw}.log",
    conda:
        "../../envs/data.yaml"
    params:
        study=asked,
        code=lambda w: ACCEPTED.download(RAW[w.raw]),
        mirror=mirror,
    shell:
        "python -m fedshift download {params.study} {params.mirror} {wildcards.raw} > {log:q} 2>&1"


rule prepare:
    input:
        source=lambda w: PATHS.raw(DATA[w.data].raw) / "source.json",
        own=lambda w: DATA[w.data].dataset.inputs(),
    output:
        images=PATHS.data("{data}") / "images.npy",
        samples=PATHS.data("{data}") / "samples.parquet",
        card=PATHS.data("{data}") / "card.json",
    log:
        "results/logs/prepare/{data}.log",
    benchmark:
        "results/benchmarks/prepare/{data}.tsv"
    conda:
        "../../envs/data.yaml"
    threads: 8
    params:
        study=asked,
        code=lambda w: ACCEPTED.prepare(DATA[w.data]),
        images=lambda w: DATA[w.data].dataset.fingerprint(),
    shell:
        "python -m fedshift prepare {params.study} {wildcards.data} --threads {threads} > {log:q} 2>&1"


rule partition:
    input:
        samples=lambda w: PATHS.data(PARTITIONS[w.partition].data.id) / "samples.parquet",
    output:
        PATHS.partition("{partition}"),
    log:
        "results/logs/partition/{partition}.log",
    conda:
        "../../envs/data.yaml"
    params:
        study=asked,
        code=lambda w: ACCEPTED.partition(w.partition),
    shell:
        "python -m fedshift partition {params.study} {wildcards.partition} > {log:q} 2>&1"
