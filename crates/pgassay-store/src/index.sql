-- The index of results. The views are for users and have stable columns; the tables may change.
drop view if exists runs;
drop view if exists points;
drop view if exists comparisons;
drop table if exists run_row;
drop table if exists point_row;
drop table if exists comparison_row;

create table run_row (
  id text primary key, study text, question text, started_us integer, ended_us integer,
  complete integer, pgassay text, headline text);
create table point_row (
  run_id text, condition integer, label text, clients integer, variant text, trials integer,
  transactions integer, tps real, latency_mean_us real, latency_p50_us real, latency_p95_us real,
  latency_p99_us real, latency_max_us real, server_cpu_us real, server_run_queue_us real,
  client_cpu_us real);
create table comparison_row (
  run_id text, condition integer, label text, clients integer, variant text, baseline text,
  verdict text, tps_ratio real, tps_low real, tps_high real, level real, pairs integer,
  pair_sd real, detectable real, latency_mean_ratio real, latency_mean_low real,
  latency_mean_high real, latency_p99_ratio real, latency_p99_low real, latency_p99_high real,
  server_cpu_ratio real, server_cpu_low real, server_cpu_high real);
create index point_of_run on point_row (run_id);
create index comparison_of_run on comparison_row (run_id);

create view runs as
  select id, study, question, started_us, datetime(started_us / 1000000, 'unixepoch') as started,
         ended_us, complete, pgassay, headline
  from run_row;
create view points as
  select run_id, condition, label, clients, variant, trials, transactions, tps, latency_mean_us,
         latency_p50_us, latency_p95_us, latency_p99_us, latency_max_us, server_cpu_us,
         server_run_queue_us, client_cpu_us
  from point_row;
create view comparisons as
  select run_id, condition, label, clients, variant, baseline, verdict, tps_ratio, tps_low,
         tps_high, level, pairs, pair_sd, detectable, latency_mean_ratio, latency_mean_low,
         latency_mean_high, latency_p99_ratio, latency_p99_low, latency_p99_high,
         server_cpu_ratio, server_cpu_low, server_cpu_high
  from comparison_row;
