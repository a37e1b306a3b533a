package tidemark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.UUID;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * Writes files of a checkpoint in an object store by one conditional PUT each, after one HEAD, and removes them by one
 * DELETE.
 *
 * Spark's own class looks for each file three times more, by a HEAD and a LIST each, and two drivers that look at once
 * may both write. Here the store accepts the first PUT alone.
 */
public class CheckpointFiles extends AbortableStreamBasedCheckpointFileManager {
    /** Metadata key with the id of the call that made an object, as in object_path.py. */
    private static final String PUT_ID = "tidemarkputid";

    private final FileSystem files;

    public CheckpointFiles(Path path, Configuration conf) throws IOException {
        super(path, conf);
        files = path.getFileSystem(conf);
    }

    /** Looks for the file of a batch by a HEAD; for a folder a LIST is needed, too. */
    public boolean exists(Path path) {
        try {
            return isOfBatch(path) ? files.isFile(path) : super.exists(path);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrites) {
        if (overwrites) {
            return super.createAtomic(path, overwrites);
        }
        try {
            FSDataOutputStreamBuilder builder = files.createFile(path);
            builder.overwrite(false);
            builder.recursive();
            // S3A looks for nothing then, and puts the object only if there is none.
            builder.opt("fs.s3a.create.performance", true);
            String id = UUID.randomUUID().toString();
            builder.opt("fs.s3a.create.header." + PUT_ID, id);
            return new Output((FSDataOutputStream) builder.build(), path, id);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Removes the file of a batch without a look at it and at its folder. */
    public void delete(Path path) {
        if (!isOfBatch(path)) {
            super.delete(path);
            return;
        }
        try {
            BulkDelete removal = files.createBulkDelete(path.getParent());
            try {
                List failed = removal.bulkDelete(Collections.singletonList(path));
                if (!failed.isEmpty()) {
                    throw new IOException(path + ": it cannot be removed: " + failed);
                }
            } finally {
                removal.close();
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static boolean isOfBatch(Path path) {
        return path.getName().matches("[0-9]+");
    }

    /** Puts its bytes when it is closed. */
    private class Output extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final FSDataOutputStream stream;
        private final Path path;
        private final String id;
        private boolean isOver = false;

        Output(FSDataOutputStream stream, Path path, String id) {
            super(stream);
            this.stream = stream;
            this.path = path;
            this.id = id;
        }

        public synchronized void close() throws IOException {
            if (isOver) {
                return;
            }
            isOver = true;
            try {
                stream.close();
            } catch (IOException error) {
                if (!files.isFile(path)) {
                    throw error;
                }
                // If the answer to a put is lost, the client puts again, and the store refuses that.
                if (!isOwn()) {
                    // By this error Spark knows that another driver has written the file.
                    FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
                    exists.initCause(error);
                    throw exists;
                }
            }
        }

        private boolean isOwn() throws IOException {
            byte[] present = files.getXAttr(path, "header." + PUT_ID);
            return Arrays.equals(present, id.getBytes(StandardCharsets.UTF_8));
        }

        public synchronized void cancel() {
            if (!isOver) {
                isOver = true;
                stream.abort();
            }
        }
    }
}
