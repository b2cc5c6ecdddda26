-- The tables of kb/tables/service.py.
-- Texts are stored without compression (EXTERNAL), so that a scan of the files finds erased words.

-- Jobs and webhooks

CREATE TABLE job (
    id           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT job_pkey PRIMARY KEY,
    kind         text NOT NULL,
    arguments    jsonb NOT NULL,
    actor        text NOT NULL,
    request_id   text,
    state        text NOT NULL,
    ticket       bigint,
    done         bigint NOT NULL DEFAULT 0,
    total        bigint,
    message      text,
    result       jsonb,
    error        jsonb,
    attempts     integer NOT NULL DEFAULT 0,
    cancelled_by text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    started_at   timestamptz,
    finished_at  timestamptz,
    heartbeat_at timestamptz,
    principal    jsonb,
    CONSTRAINT job_state_check CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled'))
);
CREATE INDEX job_unfinished_idx ON job (id) WHERE state IN ('queued', 'running');

CREATE TABLE webhook (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT webhook_pkey PRIMARY KEY,
    url             text NOT NULL,
    kinds           text[] NOT NULL,
    format          text NOT NULL,
    secret          bytea NOT NULL,
    state           text NOT NULL DEFAULT 'active',
    delivered_seq   bigint NOT NULL,
    attempts        integer NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT now(),
    delivered_at    timestamptz,
    failing_since   timestamptz,
    next_attempt_at timestamptz,
    last_error      text,
    CONSTRAINT webhook_format_check CHECK (format IN ('standard', 'cloudevents')),
    CONSTRAINT webhook_state_check CHECK (state IN ('active', 'paused', 'failed'))
);

-- Access

CREATE TABLE api_key (
    id               bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT api_key_pkey PRIMARY KEY,
    name             text NOT NULL CONSTRAINT api_key_name_key UNIQUE,
    key_hash         bytea NOT NULL CONSTRAINT api_key_key_hash_key UNIQUE,
    role             text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    revoked_at       timestamptz,
    prefix           text,
    expires_at       timestamptz,
    last_used_at     timestamptz,
    rate_limit       integer CONSTRAINT api_key_rate_limit_check CHECK (rate_limit > 0),
    rotated_at       timestamptz,
    previous_hash    bytea CONSTRAINT api_key_previous_hash_key UNIQUE,
    previous_until   timestamptz,
    previous_used_at timestamptz,
    CONSTRAINT api_key_role_check
        CHECK (role IN ('decoder', 'reader', 'operator', 'auditor', 'trainer', 'admin'))
);

CREATE TABLE browser_session (
    id           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT browser_session_pkey PRIMARY KEY,
    secret_hash  bytea NOT NULL CONSTRAINT browser_session_secret_hash_key UNIQUE,
    api_key_id   bigint NOT NULL CONSTRAINT browser_session_api_key_id_fkey REFERENCES api_key,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    last_used_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX browser_session_api_key_id_idx ON browser_session (api_key_id);

CREATE TABLE idempotency (
    id             bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT idempotency_pkey PRIMARY KEY,
    api_key_id     bigint NOT NULL CONSTRAINT idempotency_api_key_id_fkey REFERENCES api_key,
    key            text NOT NULL,
    request_sha256 bytea NOT NULL,
    claim          text NOT NULL,
    claimed_at     timestamptz NOT NULL DEFAULT now(),
    seq            bigint,
    status         integer,
    media_type     text,
    body           bytea,
    claimed_seq    bigint,
    CONSTRAINT idempotency_api_key_id_key_key UNIQUE (api_key_id, key)
);
CREATE INDEX idempotency_claimed_at_idx ON idempotency (claimed_at);

CREATE TABLE erasure_request (
    id           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT erasure_request_pkey PRIMARY KEY,
    state        text NOT NULL,
    fact_ids     bigint[] NOT NULL,
    actor        text NOT NULL,
    reason       text NOT NULL,
    asked_by     bigint NOT NULL CONSTRAINT erasure_request_asked_by_fkey REFERENCES api_key,
    at           timestamptz NOT NULL DEFAULT now(),
    decided_by   bigint CONSTRAINT erasure_request_decided_by_fkey REFERENCES api_key,
    decided_at   timestamptz,
    seq          bigint,
    on_behalf_of text,
    mentions     text,
    CONSTRAINT erasure_request_state_check CHECK (state IN ('waiting', 'approved', 'withdrawn')),
    CONSTRAINT erasure_request_two_check CHECK (state <> 'approved' OR decided_by <> asked_by)
);

CREATE TABLE denial (
    id             bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT denial_pkey PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT now(),
    request_id     text NOT NULL,
    actor          text,
    method         text NOT NULL,
    path           text NOT NULL,
    status         integer NOT NULL,
    cause          text NOT NULL,
    num_unrecorded bigint NOT NULL
);
CREATE INDEX denial_at_idx ON denial (at);

-- Misses, and what people say of outputs

CREATE TABLE miss_group (
    id            bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT miss_group_pkey PRIMARY KEY,
    state         text NOT NULL DEFAULT 'open'
                  CONSTRAINT miss_group_state_check CHECK (state IN ('open', 'dismissed', 'solved')),
    asked         bigint NOT NULL,
    wrong         bigint NOT NULL,
    last_at       timestamptz NOT NULL,
    generation_id bigint NOT NULL,
    ordinal       integer NOT NULL,
    fact_id       bigint,
    seq           bigint
);
CREATE INDEX miss_group_asked_idx ON miss_group (state, asked, id);
CREATE INDEX miss_group_last_at_idx ON miss_group (state, last_at, id);

CREATE TABLE miss (
    generation_id bigint NOT NULL CONSTRAINT miss_generation_id_fkey REFERENCES generation ON DELETE CASCADE,
    ordinal       integer NOT NULL,
    group_id      bigint CONSTRAINT miss_group_id_fkey REFERENCES miss_group,
    at            timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT miss_pkey PRIMARY KEY (generation_id, ordinal)
);
CREATE INDEX miss_group_id_idx ON miss (group_id, generation_id);
CREATE INDEX miss_at_idx ON miss (at);

CREATE TABLE feedback (
    id            bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT feedback_pkey PRIMARY KEY,
    generation_id bigint NOT NULL CONSTRAINT feedback_generation_id_fkey REFERENCES generation ON DELETE CASCADE,
    thumb         text NOT NULL CONSTRAINT feedback_thumb_check CHECK (thumb IN ('up', 'down')),
    comment       text,
    value         text,
    actor         text NOT NULL,
    on_behalf_of  text NOT NULL DEFAULT '',
    at            timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE feedback ALTER COLUMN comment SET STORAGE EXTERNAL, ALTER COLUMN value SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX feedback_one_each_key ON feedback (generation_id, actor, on_behalf_of);

-- Questions that are kept, what came of each, and the score from which answers are given

CREATE TABLE question_set (
    id     bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT question_set_pkey PRIMARY KEY,
    name   text NOT NULL CONSTRAINT question_set_name_key UNIQUE,
    corpus text,
    actor  text NOT NULL,
    at     timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE question (
    id       bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT question_pkey PRIMARY KEY,
    set_id   bigint NOT NULL CONSTRAINT question_set_id_fkey REFERENCES question_set ON DELETE CASCADE,
    text     text NOT NULL,
    expected text[] NOT NULL,
    fact_ids bigint[] NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE question ALTER COLUMN text SET STORAGE EXTERNAL, ALTER COLUMN expected SET STORAGE EXTERNAL;
CREATE INDEX question_of_set_idx ON question (set_id, id);

CREATE TABLE question_run (
    id            bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT question_run_pkey PRIMARY KEY,
    set_id        bigint NOT NULL CONSTRAINT question_run_set_id_fkey REFERENCES question_set ON DELETE CASCADE,
    how           text NOT NULL,
    threshold     double precision NOT NULL,
    keyset_id     bigint,
    checkpoint_id text,
    reader        text,
    first_seq     bigint NOT NULL,
    seq           bigint NOT NULL,
    num_asked     integer NOT NULL,
    num_right     integer NOT NULL,
    num_wrong     integer NOT NULL,
    num_abstained integer NOT NULL,
    num_skipped   integer NOT NULL,
    actor         text NOT NULL,
    at            timestamptz NOT NULL DEFAULT now(),
    seconds       double precision NOT NULL,
    accepted_only boolean NOT NULL DEFAULT false,
    CONSTRAINT question_run_how_check CHECK (how IN ('read', 'paper', 'words', 'reader'))
);
CREATE INDEX question_run_of_set_idx ON question_run (set_id, id);

CREATE TABLE question_outcome (
    id          bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT question_outcome_pkey PRIMARY KEY,
    run_id      bigint NOT NULL CONSTRAINT question_outcome_run_id_fkey REFERENCES question_run ON DELETE CASCADE,
    question_id bigint NOT NULL,
    question    text NOT NULL,
    expected    text[] NOT NULL,
    value       text,
    fact_id     bigint,
    fact_ids    bigint[] NOT NULL,
    score       double precision NOT NULL,
    outcome     text NOT NULL,
    reason      text,
    seq         bigint NOT NULL,
    CONSTRAINT question_outcome_outcome_check CHECK (outcome IN ('right', 'wrong', 'abstained'))
);
ALTER TABLE question_outcome ALTER COLUMN question SET STORAGE EXTERNAL,
    ALTER COLUMN expected SET STORAGE EXTERNAL, ALTER COLUMN value SET STORAGE EXTERNAL;
CREATE INDEX question_outcome_of_run_idx ON question_outcome (run_id, id);
CREATE INDEX question_outcome_question_id_idx ON question_outcome (question_id);

CREATE TABLE answer_calibration (
    id        bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT answer_calibration_pkey PRIMARY KEY,
    seq       bigint NOT NULL,
    reader    text NOT NULL,
    threshold double precision NOT NULL,
    report    jsonb NOT NULL
);
