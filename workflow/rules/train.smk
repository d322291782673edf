# One job a run. Its checkpoint is no output: Snakemake would delete it when the job fails.


rule train:
    input:
        data=lambda w: [PATHS.data(RUNS[w.run].data.id) / f for f in ("images.npy", "samples.parquet", "card.json")],
        partition=lambda w: PATHS.partition(RUNS[w.run].partition_id),
    output:
        spec=PATHS.run("{run}") / "spec.json",
        model=PATHS.run("{run}") / "model.safetensors",
        clients=PATHS.run("{run}") / "clients.safetensors",
        rounds=PATHS.run("{run}") / "rounds.parquet",
        manifest=PATHS.run("{run}") / "manifest.json",
    log:
        "results/logs/train/{run}.log",
    benchmark:
        "results/benchmarks/train/{run}.tsv"
    conda:
        "../../envs/train.yaml"
    threads: 1
    params:
        study=asked,
        code=lambda w: study.code("train", *RUNS[w.run].plugins),
    shell:
        "python -m fedshift train {params.study} {wildcards.run} --threads {threads} > {log:q} 2>&1"
