"""Names of settings that the documents of both Kafka clients have."""

from __future__ import annotations

_JAVA = """
allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset
bootstrap.servers check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms
default.api.timeout.ms enable.auto.commit enable.metrics.push exclude.internal.topics fetch.max.bytes
fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor
heartbeat.interval.ms interceptor.classes isolation.level key.deserializer max.partition.fetch.bytes
max.poll.interval.ms max.poll.records metadata.max.age.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms
retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
session.timeout.ms socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type value.deserializer
"""
OF_JAVA = frozenset(_JAVA.split())
"""Kafka's consumer configuration, 3.9: the client of Spark's source."""

_LIBRDKAFKA = """
acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
auto.commit.enable auto.commit.interval.ms auto.offset.reset batch.num.messages batch.size
bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback builtin.features
check.crcs client.dns.lookup client.id client.rack compression.codec compression.level compression.type
connections.max.idle.ms consume.callback.max.messages coordinator.query.interval.ms debug
delivery.report.only.error delivery.timeout.ms enable.auto.commit
enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.metrics.push
enable.partition.eof enable.random.seed enable.sasl.oauthbearer.unsecure.jwt
enable.ssl.certificate.verification enabled_events fetch.error.backoff.ms fetch.max.bytes
fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id
group.instance.id group.protocol group.protocol.type group.remote.assignor heartbeat.interval.ms
https.ca.location https.ca.pem internal.termination.signal isolation.level linger.ms
log.connection.close log.queue log.thread.name log_level max.in.flight
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms metadata.broker.list
metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy msg_order_cmp
offset.store.method offset.store.path offset.store.sync.interval.ms partition.assignment.strategy
partitioner produce.offset.report queue.buffering.backpressure.threshold queue.buffering.max.kbytes
queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages
queuing.strategy receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms
reconnect.backoff.ms request.required.acks request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism sasl.mechanisms
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
sasl.oauthbearer.extensions sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type
sasl.oauthbearer.method sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol session.timeout.ms
share.acknowledgement.mode socket.blocking.max.ms socket.connection.setup.timeout.ms
socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem
ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location ssl.key.password
ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
statistics.interval.ms sticky.partitioning.linger.ms
topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
transaction.timeout.ms transactional.id
"""
OF_LIBRDKAFKA = frozenset(_LIBRDKAFKA.split())
"""librdkafka's CONFIGURATION.md, 2.16, without callbacks and pointers."""

_HAVE_KEYS = """
bootstrap.servers metadata.broker.list security.protocol sasl.mechanism sasl.mechanisms sasl.username sasl.password
sasl.jaas.config sasl.login.callback.handler.class sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
sasl.oauthbearer.method sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url ssl.ca.certificate.stores
ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.password ssl.key.pem
ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type
ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
"""
_SET = """
acks auto.offset.reset batch.size debug delivery.report.only.error enable.auto.commit enable.gapless.guarantee
enable.idempotence enable.partition.eof group.id group.instance.id interceptor.classes key.deserializer linger.ms
max.poll.records message.max.bytes queue.buffering.max.ms request.required.acks transactional.id value.deserializer
"""
_OF_GROUPS = """
auto.commit.enable auto.commit.interval.ms coordinator.query.interval.ms enable.auto.offset.store group.protocol
group.protocol.type group.remote.assignor heartbeat.interval.ms max.poll.interval.ms offset.store.method
offset.store.path offset.store.sync.interval.ms partition.assignment.strategy session.timeout.ms
share.acknowledgement.mode topic.blacklist
"""
_ASKS = """
consume.callback.max.messages enabled_events log.queue produce.offset.report statistics.interval.ms
"""
_OF_KERBEROS = """
sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
"""
_OF_BROKERS = """
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
"""
_ONE_SIDED = """
enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.config sasl.oauthbearer.grant.type
sasl.oauthbearer.metadata.authentication.type
"""
REFUSED = {
    "has a key of its own": frozenset(_HAVE_KEYS.split()),
    "is set by Tidemark": frozenset(_SET.split()),
    "joins no consumer group": frozenset(_OF_GROUPS.split()),
    "sends without transactions": frozenset({"transaction.timeout.ms"}),
    "a sink places its records": frozenset({"partitioner", "msg_order_cmp", "sticky.partitioning.linger.ms"}),
    "nothing receives what it asks for": frozenset(_ASKS.split()),
    "librdkafka does not use it any more": frozenset(
        {"reconnect.backoff.jitter.ms", "socket.blocking.max.ms", "topic.metadata.refresh.fast.cnt"}
    ),
    "Spark never finds internal topics": frozenset({"exclude.internal.topics"}),
    "do not log in with Kerberos": frozenset(_OF_KERBEROS.split()),
    "brokers check tokens": frozenset(_OF_BROKERS.split()),
    "would be a setting of librdkafka alone": frozenset(_ONE_SIDED.split()),
}
"""The names that `settings` refuses, by words of the reason."""
ACCEPTED = (OF_JAVA | OF_LIBRDKAFKA) - frozenset().union(*REFUSED.values())
"""The other names: both clients have them, or the one that does uses them for something that the other does not do."""
