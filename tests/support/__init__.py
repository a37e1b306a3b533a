"""Helpers of all tests, one line each.

| module | gives tests |
|---|---|
| `alert_services` | a pager, an Alertmanager and a webhook on loopback that check their interface |
| `topologies` | `topology_of`, `operators`: texts of topologies from a line per operator; those that many tests share |
| `parsed_source` | `source`, `AVRO`: a source whose records are parsed, and their Avro schema |
| `play` | `Play`: batches of a topology over rows written by hand, without Spark or a broker |
| `world` | `World`: drivers that live beside producers, brokers, hosts and clocks, which faults can move |
| `world_drivers` | `Driver`: Spark's loop and the process around the engine of a stream in a world |
| `planted` | the faults that tests plant into a world, as data |
| `fault_table` | the table of planted faults: topology, promise, times, fault, owner and amount |
| `healthy` | the stages of that table, which are healthy until their faults begin, and their promises |
| `excess` | whose time broke a promise, from what happened in a world |
| `played_facts` | the facts of a world in the frames of the account of time |
| `job_world` | `JobWorld`: a world with a recorded job |
| `quiet_broker` | `Silence`: a broker in memory that keeps what is published |
| `frozen` | asks played warehouses all questions, and compares the answers with stored ones |
| `frozen_plays` | plays the topologies whose answers are stored |
| `golden_warehouse` | a warehouse with results that were worked out by hand, also with a killed driver; its archive |
| `public_interface` | `interface`: columns, arguments, keys and names on which users depend |
| `control_files` | `unlisted`: files of a control folder that are in no list of such files |
| `crashes` | `crash_at`: the end of a driver at a named step of its batch; `Killer`: at any write |
| `small_spark` | `Driver`, `Topics`: batches that are planned in a checkpoint as Spark does, over topics in memory |
| `changing` | `Results`, `Reading`: what a topology must have whose file changes between its drivers |
| `oracle` | `Oracle`: the results of a topology declared in Python, record by record |
| `oracle_parts` | values of the oracle: records, batches, emit-on-change, record time |
| `separate_executors` | `Apart`, `OneWorker`, `Workers`: executors for shards that share nothing but files |
| `traced` | `KeptRecords`: the records of a play, to be read again by a trace |
| `past_days` | days of `flights` before an hour that is played |
| `plain_topology` | the expected results of a drawn topology, record by record |
| `repairable` | `Repairable`: a stopped stream that each command for repairs can repair |
| `watched_year` | plays tables that other programs write, with planted stops, and counts what alarms find |
| `report_warehouse` | `TestWarehouse`: rows of any table, written as a stream or a report would |
| `latency_facts` | the facts about latency that one batch leaves |
| `busy_warehouse` | a warehouse of `flights` with faults, alerts and a month of history, and one without faults |
| `reported_window` | a warehouse with one reported window of `flights` |
| `flights_day` | a day of flights, played twelve times as fast, and its expected records |
| `hostile_strings` | `HOSTILE`: strings that programs may obey |
| `otlp_receiver` | `OtlpReceiver`: an OTLP server over HTTP that keeps the metrics and spans that it is sent |
| `command_line` | `tidemark`: a command, run within the process of the test |
| `documented_commands` | `shown_commands`: the commands that pages and `--help` show |
| `typed_commands` | the commands in a text, checked against the real command line |
| `tcp_proxy` | `TcpProxy`: a network on loopback that can stall or reset its connections |
| `schema_registry` | `SchemaRegistry`: a small schema registry over HTTP, which can be stopped and started |
| `recorded_facts` | what the drivers of a topology recorded, as facts of the account of time |
| `recorded_jobs` | `Job`: a query of a job, recorded as Spark reports it |
| `unchanged_jobs` | `Shop`: jobs of a team's own, run in the Spark of the tests |
| `consumer_groups` | `group_offsets`, `groups`: consumer groups as a lag exporter reads them |
| `broker_rights` | `grant`: a right on a topic of the tests' broker |
| `small_disk` | `small_disk`: a disk of some megabytes that can be filled |
| `causes` | `known_causes`: the causes that `tidemark why` can find |
| `mail_and_webhook` | `Inbox`, `Receiver`: a mail server and a webhook on loopback |
| `power_loss` | `run_traced`, `keep_survivors`: the files that a loss of power would leave of a folder |
| `process_watch` | `watched`: the command lines of all processes while something runs |
| `shared_spark` | `one_spark`: one Spark session for a process |
| `shared_broker` | `one_broker`: one Kafka broker for a process |
| `offset_log` | `write_checkpoint`: a checkpoint of the installed Spark, with a topic and a table |
| `all_readers` | `by_all_readers`: rows of a Delta table, on which each library that users read it by agrees |
| `both_engines` | `BothEngines`: one query, asked of Spark and of DuckDB, with equal results |
| `made_up` | `installed`, `run_with`: packages of a user that add a kind to an open list |
| `syntax` | `nodes`, `top_level`: syntax trees of the product's files, parsed once |
| `airflow_checkout` | `own_checkout`: DAGs and plugins with a test's own topology |
| `postgres` | `served`: an empty PostgreSQL on loopback, which can be killed |
| `replayed_days` | `Days`: two days of three partitions, replayed by a process that can be killed; their oracle |
| `stored_facts` | facts of a simulated life as drivers store them: counted in rows, and read back |
| `supervised_streams` | `Stage`, `Supervised`: a real Airflow and streams that it launches, kills and clears |
| `yarn_cluster` | `YarnCluster`: Hadoop's ResourceManager and two NodeManagers on loopback, which can be killed |
| `schemas` | `validator`: by the JSON Schema of a kind of file |
| `views` | `table_or_view`: the rows of a table, or of a view over tables |
| `sql_scripts` | `statements_of`: the statements of a script of SQL |
| `sla_rows` | `row_of_page`: the text of an SLA on the page that Airflow shows |
| `supervision_cases` | cases of supervision for every place of the control folder |
"""
