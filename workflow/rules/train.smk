# One job a run. Its checkpoint is no output: Snakemake would delete it when the job fails. With `exec` no shell stands
# between the training and a signal to stop, of which it would die before the training has stopped.


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
    threads: int(config["processes"])
    params:
        launch=launch,
        each=lambda w, threads: max(1, threads // int(config["processes"])),
        study=asked,
        code=lambda w: ACCEPTED.train(RUNS[w.run]),
    shell:
        "exec python -m {params.launch} fedshift train {params.study} {wildcards.run} --threads {params.each} > {log:q} 2>&1"
