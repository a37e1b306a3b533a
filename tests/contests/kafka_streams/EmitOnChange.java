import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/** Forwards an update of a key only if its value differs from the one before. */
public final class EmitOnChange {
    private static final String LAST = "last";

    /** An update: {@code at} is its instant, all after the id and before the instant is its value. */
    public record Update(String id, String status, long amount, String note, long at) {
        boolean hasValueOf(Update other) {
            return status.equals(other.status) && amount == other.amount && note.equals(other.note);
        }
    }

    /** Keeps the last value of each key in RocksDB; a changelog topic makes it durable. */
    static final class OnlyChanges implements ProcessorSupplier<String, Update, String, Update> {
        @Override
        public Processor<String, Update, String, Update> get() {
            return new Processor<>() {
                private ProcessorContext<String, Update> context;
                private KeyValueStore<String, Update> last;

                @Override
                public void init(ProcessorContext<String, Update> context) {
                    this.context = context;
                    this.last = context.getStateStore(LAST);
                }

                @Override
                public void process(Record<String, Update> record) {
                    Update before = last.get(record.key());
                    if (before == null || !before.hasValueOf(record.value())) {
                        last.put(record.key(), record.value());
                        context.forward(record);
                    }
                }
            };
        }

        @Override
        public Set<StoreBuilder<?>> stores() {
            return Set.of(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(LAST), Serdes.String(), json()));
        }
    }

    private static Serde<Update> json() {
        ObjectMapper mapper = new ObjectMapper();
        return Serdes.serdeFrom(
                (topic, update) -> {
                    try {
                        return update == null ? null : mapper.writeValueAsBytes(update);
                    } catch (IOException e) {
                        throw new UncheckedIOException(e);
                    }
                },
                (topic, bytes) -> {
                    try {
                        return bytes == null ? null : mapper.readValue(bytes, Update.class);
                    } catch (IOException e) {
                        throw new UncheckedIOException(e);
                    }
                });
    }

    /** Arguments: address, input topic, output topic, application id, folder of the state, guarantee. */
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[3]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[5]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[1], Consumed.with(Serdes.String(), json()))
                .process(new OnlyChanges())
                .to(args[2], Produced.with(Serdes.String(), json()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
