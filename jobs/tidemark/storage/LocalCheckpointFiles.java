package tidemark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Writes files of a checkpoint on a disk as Spark's own class does, by a rename, and starts no process for that.
 *
 * Without its native library Hadoop runs `chmod` for each new file: four times a batch, for the plan, the commit, and
 * the checksums of both.
 */
public class LocalCheckpointFiles extends FileSystemBasedCheckpointFileManager {
    public LocalCheckpointFiles(Path path, Configuration conf) {
        super(path, withOwnFiles(conf));
    }

    private static Configuration withOwnFiles(Configuration conf) {
        Configuration own = new Configuration(conf);
        own.setClassLoader(LocalCheckpointFiles.class.getClassLoader());
        own.set("fs.file.impl", ChecksummedFiles.class.getName());
        // Hadoop would return the file system of the same URL that others use.
        own.setBoolean("fs.file.impl.disable.cache", true);
        return own;
    }

    /** Hadoop's local files with their checksums. */
    public static class ChecksummedFiles extends LocalFileSystem {
        public ChecksummedFiles() {
            super(new RawFiles());
        }
    }

    /** The files themselves, whose permissions this process sets. */
    private static class RawFiles extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws IOException {
            String text = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
                + permission.getOtherAction().SYMBOL;
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
        }
    }
}
