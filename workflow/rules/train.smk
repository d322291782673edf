# There is one job for each run. Its checkpoint is not an output, since Snakemake would delete it when the job fails.
# `exec` replaces the shell by the training: a signal to stop would end a shell before the training has stopped.


rule train:
    input:
        data=lambda w: prepared(RUNS[w.run].data),
        partition=lambda w: PATHS.partition(RUNS[w.run].partition_id),
    output:
        spec=PATHS.run_files("{run}").spec,
        model=PATHS.run_files("{run}").model,
        clients=PATHS.run_files("{run}").clients,
        rounds=PATHS.run_files("{run}").rounds,
        manifest=PATHS.run_files("{run}").manifest,
    log:
        PATHS.log("train", "{run}"),
    wildcard_constraints:
        run="(?!.*-search-[a-z0-9]+/)[A-Za-z0-9_-]+",
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


localrules:
    choose,


# The manifest of a candidate is written anew when its code is accepted, which leaves the choice as it is.
rule choose:
    input:
        manifests=lambda w: [ancient(PATHS.run_files(run).manifest) for run in SEARCHES[w.run].candidates],
        models=lambda w: [PATHS.run_files(run).model for run in SEARCHES[w.run].candidates],
        predictions=lambda w: [
            PATHS.predictions(run, ORACLES[run])
            for run in SEARCHES[w.run].candidates
            if SEARCHES[w.run].search.rule == "oracle"
        ],
    output:
        spec=PATHS.run_files("{run}").spec,
        model=PATHS.run_files("{run}").model,
        clients=PATHS.run_files("{run}").clients,
        rounds=PATHS.run_files("{run}").rounds,
        manifest=PATHS.run_files("{run}").manifest,
    log:
        PATHS.log("choose", "{run}"),
    wildcard_constraints:
        run="[A-Za-z0-9_-]+-search-[a-z0-9]+",
    conda:
        "../../envs/train.yaml"
    threads: 1
    params:
        study=asked,
        code=study.code("jobs.choose"),
    shell:
        "python -m fedshift choose {params.study} {wildcards.run} > {log:q} 2>&1"
