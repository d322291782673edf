# There is one job for each run. Its checkpoint is not an output, since Snakemake would delete it when the job fails.
# `exec` replaces the shell by the training: a signal to stop would end a shell before the training has stopped.


rule train:
    input:
        data=lambda w: prepared(run_of(w).data),
        partition=lambda w: PATHS.partition(run_of(w).partition_id),
    output:
        PATHS.run_files("{run}").trained,
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
        code=lambda w: ACCEPTED.stamp("train", w.run, accept.train_code(run_of(w))),
    shell:
        "exec python -m {params.launch} fedshift train {params.study} {wildcards.run} --threads {params.each} > {log:q} 2>&1"


localrules:
    choose,


# The manifest of a candidate is written anew when its code is accepted, which leaves the choice as it is.
rule choose:
    input:
        manifests=lambda w: [ancient(PATHS.run_files(run).manifest) for run in run_of(w).candidates],
        models=lambda w: [PATHS.run_files(run).model for run in run_of(w).candidates],
        predictions=lambda w: [
            PATHS.predictions(run, CALL.oracles[run])
            for run in run_of(w).candidates
            if run_of(w).search.rule == "oracle"
        ],
    output:
        PATHS.run_files("{run}").trained,
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
