import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Forwards an update of a key only if its value differs from the one before. */
public final class EmitOnChange {
    private static final long CHECKPOINT_EVERY_MS = 10_000;
    /** A broker refuses more than 15 minutes; Flink's default is an hour. */
    private static final String TRANSACTION_TIMEOUT_MS = "600000";

    /** An update: {@code at} is its instant, all after the id and before the instant is its value. */
    public static class Update {
        public String id;
        public String status;
        public long amount;
        public String note;
        public long at;

        boolean hasValueOf(Update other) {
            return status.equals(other.status) && amount == other.amount && note.equals(other.note);
        }
    }

    static final class FromJson extends AbstractDeserializationSchema<Update> {
        private transient ObjectMapper mapper;

        @Override
        public void open(InitializationContext context) {
            mapper = new ObjectMapper();
        }

        @Override
        public Update deserialize(byte[] message) throws IOException {
            return mapper.readValue(message, Update.class);
        }
    }

    static final class ToJson implements SerializationSchema<Update> {
        private transient ObjectMapper mapper;

        @Override
        public void open(InitializationContext context) {
            mapper = new ObjectMapper();
        }

        @Override
        public byte[] serialize(Update update) {
            try {
                return mapper.writeValueAsBytes(update);
            } catch (JsonProcessingException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    /** Keeps the last value of each key on the heap; checkpoints make it durable. */
    static final class OnlyChanges extends KeyedProcessFunction<String, Update, Update> {
        private transient ValueState<Update> last;

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Update.class));
        }

        @Override
        public void processElement(Update update, Context context, Collector<Update> out) throws Exception {
            Update before = last.value();
            if (before == null || !before.hasValueOf(update)) {
                last.update(update);
                out.collect(update);
            }
        }
    }

    /** Arguments: address, input topic, output topic, group, folder of checkpoints, guarantee, checkpoint to restore. */
    public static void main(String[] args) throws Exception {
        boolean exactlyOnce = args[5].equals("exactly_once");
        Configuration settings = new Configuration();
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, args[4]);
        settings.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        if (args.length > 6) {
            settings.set(StateRecoveryOptions.SAVEPOINT_PATH, args[6]);
        }
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        env.enableCheckpointing(
                CHECKPOINT_EVERY_MS, exactlyOnce ? CheckpointingMode.EXACTLY_ONCE : CheckpointingMode.AT_LEAST_ONCE);
        KafkaSource<Update> source = KafkaSource.<Update>builder()
                .setBootstrapServers(args[0])
                .setTopics(args[1])
                .setGroupId(args[3])
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new FromJson())
                .build();
        KafkaSink<Update> sink = KafkaSink.<Update>builder()
                .setBootstrapServers(args[0])
                .setRecordSerializer(KafkaRecordSerializationSchema.<Update>builder()
                        .setTopic(args[2])
                        .setKeySerializationSchema((Update update) -> update.id.getBytes(StandardCharsets.UTF_8))
                        .setValueSerializationSchema(new ToJson())
                        .build())
                .setDeliveryGuarantee(exactlyOnce ? DeliveryGuarantee.EXACTLY_ONCE : DeliveryGuarantee.AT_LEAST_ONCE)
                .setTransactionalIdPrefix(args[3])
                .setProperty("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
                .build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "updates")
                .uid("updates")
                .keyBy(update -> update.id)
                .process(new OnlyChanges())
                .uid("only changes")
                .sinkTo(sink)
                .uid("changes");
        env.execute("emit on change");
    }
}
