rule predict:
    input:
        data=lambda w: [PATHS.data(RUNS[w.run].data.id) / f for f in ("images.npy", "samples.parquet")],
        partition=lambda w: PATHS.partition(RUNS[w.run].partition_id),
        model=PATHS.run("{run}") / "model.safetensors",
        clients=PATHS.run("{run}") / "clients.safetensors",
        spec=PATHS.run("{run}") / "spec.json",
    output:
        PATHS.predictions("{run}", "{inference}"),
    log:
        "results/logs/predict/{run}-{inference}.log",
    benchmark:
        "results/benchmarks/predict/{run}-{inference}.tsv"
    conda:
        "../../envs/train.yaml"
    threads: 1
    params:
        study=asked,
        code=lambda w: study.code("jobs.predict", *RUNS[w.run].plugins, INFERENCES[w.inference]),
    shell:
        "python -m fedshift predict {params.study} {wildcards.run} {wildcards.inference} --threads {threads} > {log:q} 2>&1"
