-- Of the tables of kb/tables/facts.py: checkpoints, keysets and keys.

-- Checkpoints, keysets and keys

CREATE TABLE checkpoint (
    id             text CONSTRAINT checkpoint_pkey PRIMARY KEY,
    name           text NOT NULL,
    dim            integer NOT NULL,
    path           text,
    tokenizer_hash text,
    trained_on     text,
    registered_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE keyset (
    id                    bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT keyset_pkey PRIMARY KEY,
    checkpoint_id         text NOT NULL CONSTRAINT keyset_checkpoint_id_fkey REFERENCES checkpoint,
    index_spec            text NOT NULL,
    threshold             double precision NOT NULL,
    calibrated            boolean NOT NULL,
    state                 text NOT NULL,
    applied_seq           bigint NOT NULL,
    gate                  jsonb,
    accepted_only         boolean NOT NULL DEFAULT false,
    index_fit             jsonb,
    shared_snapshot       jsonb,
    whole_index_fit       jsonb,
    whole_shared_snapshot jsonb,
    no_question_keys_upto bigint,
    CONSTRAINT keyset_state_check CHECK (state IN ('building', 'ready', 'active', 'retired'))
);
CREATE UNIQUE INDEX keyset_active_key ON keyset (state) WHERE state = 'active';
CREATE UNIQUE INDEX keyset_checkpoint_id_key ON keyset (checkpoint_id) WHERE state <> 'retired';

-- A partition exists only for a keyset that does, so no key refers to its keyset besides.
CREATE SEQUENCE fact_key_id_seq AS bigint;
CREATE TABLE fact_key (
    keyset_id bigint NOT NULL,
    id        bigint NOT NULL,
    fact_id   bigint NOT NULL CONSTRAINT fact_key_fact_id_fkey REFERENCES fact,
    kind      text NOT NULL,
    key       bytea NOT NULL,
    CONSTRAINT fact_key_pkey PRIMARY KEY (keyset_id, id),
    CONSTRAINT fact_key_kind_check CHECK (kind IN ('context', 'question', 'alias', 'adopted'))
) PARTITION BY LIST (keyset_id);
CREATE UNIQUE INDEX fact_key_one_of_a_kind_key ON fact_key (keyset_id, fact_id, kind) WHERE kind <> 'alias';
CREATE INDEX fact_key_fact_id_idx ON fact_key (fact_id);

-- Stored outputs and their lookups

CREATE TABLE generation (
    id            bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT generation_pkey PRIMARY KEY,
    prompt        text NOT NULL,
    output        text NOT NULL,
    checkpoint_id text NOT NULL,
    keyset_id     bigint,
    seq           bigint NOT NULL,
    mode          text NOT NULL,
    at            timestamptz NOT NULL DEFAULT now(),
    redacted_seq  bigint,
    document_id   bigint,
    quoted_start  integer,
    quoted_end    integer,
    ranking       text NOT NULL DEFAULT 'key',
    accepted_only boolean NOT NULL DEFAULT false,
    CONSTRAINT generation_quoted_check CHECK (
        num_nonnulls(document_id, quoted_start, quoted_end) IN (0, 3)
        AND quoted_start >= 0 AND quoted_start < quoted_end
    ),
    CONSTRAINT generation_ranking_check CHECK (ranking IN ('key', 'words', 'reader'))
);
-- Without compression, so that a scan of the files finds erased words.
ALTER TABLE generation ALTER COLUMN prompt SET STORAGE EXTERNAL, ALTER COLUMN output SET STORAGE EXTERNAL;

CREATE TABLE attribution (
    generation_id bigint NOT NULL CONSTRAINT attribution_generation_id_fkey REFERENCES generation ON DELETE CASCADE,
    ordinal       integer NOT NULL,
    output_start  integer NOT NULL,
    output_end    integer NOT NULL,
    fact_id       bigint,
    fact_version  integer,
    score         double precision,
    outcome       text NOT NULL,
    query         bytea,
    part_start    integer,
    part_end      integer,
    quoted_start  integer,
    quoted_end    integer,
    CONSTRAINT attribution_pkey PRIMARY KEY (generation_id, ordinal),
    CONSTRAINT attribution_outcome_check CHECK (outcome IN ('hit', 'no_match', 'abstained')),
    CONSTRAINT attribution_evidence_check
        CHECK ((outcome = 'hit') = (fact_id IS NOT NULL AND fact_version IS NOT NULL)),
    CONSTRAINT attribution_part_check CHECK (
        num_nonnulls(part_start, part_end) IN (0, 2) AND part_start >= 0 AND part_start < part_end
    ),
    CONSTRAINT attribution_quoted_check CHECK (
        num_nonnulls(quoted_start, quoted_end) IN (0, 2) AND quoted_start >= 0 AND quoted_start < quoted_end
    )
);
CREATE INDEX attribution_fact_id_idx ON attribution (fact_id);
