rule predict:
    input:
        data=lambda w: prepared(RUNS[w.run].data),
        partition=lambda w: PATHS.partition(RUNS[w.run].partition_id),
        model=PATHS.run_files("{run}").model,
        clients=PATHS.run_files("{run}").clients,
        spec=PATHS.run_files("{run}").spec,
    output:
        PATHS.predictions("{run}", "{inference}"),
    log:
        PATHS.log("predict", "{run}-{inference}"),
    conda:
        "../../envs/train.yaml"
    threads: 1
    params:
        study=asked,
        code=lambda w: study.code("jobs.predict", *RUNS[w.run].plugins, *INFERENCES[w.inference]),
    shell:
        "python -m fedshift predict {params.study} {wildcards.run} {wildcards.inference} --threads {threads} > {log:q} 2>&1"
