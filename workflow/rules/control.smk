# There is one control for each partition, whichever runs are trained on it: it asks how far colour and texture go.


rule control:
    input:
        images=lambda w: PATHS.data_files(CONTROLS[w.partition].data.id).images,
        samples=lambda w: PATHS.data_files(CONTROLS[w.partition].data.id).samples,
        card=lambda w: PATHS.data_files(CONTROLS[w.partition].data.id).card,
        partition=lambda w: PATHS.partition(w.partition),
    output:
        PATHS.control("{partition}"),
    log:
        PATHS.log("control", "{partition}"),
    conda:
        "../../envs/report.yaml"
    threads: 1
    params:
        study=asked,
        code=study.code("jobs.control"),
    shell:
        "python -m fedshift control {params.study} {wildcards.partition} --threads {threads} > {log:q} 2>&1"
