#!/bin/bash
#SBATCH --comment=osmosis
# Modules, variables and whatever else the cluster wants before a job. For a container put its command into job_command
# of worker.toml: ["apptainer", "exec", "/images/osmosis.sif", "python3", "-m", "osmosis.jobs"].
umask 077
{job}
