"""HTTP for clients and jobs: routes parse and call services, nothing more."""

from __future__ import annotations

from fastapi import APIRouter

from . import (
    audit_routes,
    dataset_routes,
    deployment_routes,
    eval_run_routes,
    history_routes,
    inference_routes,
    job_folder_routes,
    job_routes,
    login_routes,
    model_file_routes,
    model_routes,
    not_offered_routes,
    people_routes,
    quota_routes,
    rollout_server_routes,
    run_upload_routes,
    secret_routes,
    sync_routes,
    training_run_routes,
    webhook_routes,
    worker_routes,
    workspace_routes,
)

ROUTERS: tuple[APIRouter, ...] = (
    login_routes.router,
    people_routes.router,
    quota_routes.router,
    audit_routes.router,
    workspace_routes.router,
    sync_routes.router,
    webhook_routes.router,
    dataset_routes.router,
    secret_routes.router,
    run_upload_routes.router,
    eval_run_routes.router,
    history_routes.router,
    training_run_routes.router,
    model_file_routes.router,
    deployment_routes.router,
    model_routes.router,
    inference_routes.router,
    not_offered_routes.router,
    rollout_server_routes.router,
    job_routes.tickets_router,
    job_routes.router,
    job_folder_routes.router,
    worker_routes.router,
    worker_routes.people,
)
"""Every router of the API, in order of match."""
