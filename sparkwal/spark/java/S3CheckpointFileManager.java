package sparkwal.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * The files of a Spark checkpoint on S3: one PUT creates a file, and nothing precedes it. A file
 * that must not be overwritten has If-None-Match, of S3A's conditional create (hadoop-aws 3.4.2 or
 * newer). So of two runs of one checkpoint one fails. Other file systems get Spark's rename.
 */
public class S3CheckpointFileManager extends FileSystemBasedCheckpointFileManager {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
  private static final String WITHOUT_PROBES = "fs.s3a.create.performance";
  private static final String HEADER = "fs.s3a.create.header.";
  // Metadata of an object: the id of the stream that put it.
  private static final String STREAM = "sparkwal-stream";

  private final Path folder;
  private final boolean conditional;
  // Names in the folder: those that were listed once, and those that were created since.
  private final Set<String> names = ConcurrentHashMap.newKeySet();
  private volatile boolean listed = false;

  public S3CheckpointFileManager(Path path, Configuration hadoopConf) throws IOException {
    super(path, hadoopConf);
    folder = fs().makeQualified(path);
    conditional = fs().hasPathCapability(folder, CONDITIONAL);
    if (!conditional && "s3a".equals(fs().getScheme())) {
      throw new UnsupportedOperationException(
          "S3A creates no file conditionally: the checkpoint "
              + folder
              + " needs hadoop-aws 3.4.2 or newer, and fs.s3a.create.conditional.enabled=true");
    }
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    if (!conditional) {
      return super.createAtomic(path, overwriteIfPossible);
    }
    String stream = UUID.randomUUID().toString();
    FSDataOutputStreamBuilder<?, ?> file = fs().createFile(path);
    if (overwriteIfPossible) {
      file.must(WITHOUT_PROBES, true);
    } else {
      file.must(CONDITIONAL, true);
      file.must(HEADER + STREAM, stream);
    }
    return new Upload(path, overwriteIfPossible ? null : stream, unchecked(file::build));
  }

  /** The files of a folder. One without files is there too: S3 has no folders. */
  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    if (!conditional) {
      return super.list(path, filter);
    }
    FileStatus[] found = unchecked(() -> listed(path));
    if (fs().makeQualified(path).equals(folder)) {
      Arrays.stream(found).forEach(each -> names.add(each.getPath().getName()));
      listed = true;
    }
    return Arrays.stream(found)
        .filter(each -> filter.accept(each.getPath()))
        .toArray(FileStatus[]::new);
  }

  private FileStatus[] listed(Path path) throws IOException {
    try {
      return fs().listStatus(path);
    } catch (FileNotFoundException e) {
      return new FileStatus[0];
    }
  }

  @Override
  public void mkdirs(Path path) {
    if (!conditional) {
      super.mkdirs(path);
    }
  }

  @Override
  public Path createCheckpointDirectory() {
    return conditional ? folder : super.createCheckpointDirectory();
  }

  /**
   * Whether a path exists. Once the folder was listed, a file that neither the list nor this
   * manager has is absent without a request: if another run creates it, our PUT is refused.
   */
  @Override
  public boolean exists(Path path) {
    Path asked = fs().makeQualified(path);
    if (!conditional) {
      return super.exists(path);
    }
    if (asked.equals(folder)) {
      // Spark makes managers of single files too: they have no names.
      boolean found = !names.isEmpty() || super.exists(path);
      listed |= !found;
      return found;
    }
    boolean known = listed && folder.equals(asked.getParent());
    return (!known || names.contains(asked.getName())) && super.exists(path);
  }

  /** Delete a file, or this manager's folder: Spark deletes no other. */
  @Override
  public void delete(Path path) {
    Path gone = fs().makeQualified(path);
    if (!conditional || gone.equals(folder)) {
      super.delete(path);
      return;
    }
    unchecked(
        () -> {
          // One DELETE. FileSystem.delete sends a HEAD before it and a LIST after it.
          try (BulkDelete deletes = fs().createBulkDelete(gone.getParent())) {
            var failures = deletes.bulkDelete(List.of(gone));
            if (!failures.isEmpty()) {
              throw new IOException(failures.get(0).getValue());
            }
          }
          return null;
        });
    if (folder.equals(gone.getParent())) {
      names.remove(gone.getName());
    }
  }

  /** A file that S3A uploads when it is closed; its parts sooner if it is large. */
  private final class Upload extends CancellableFSDataOutputStream {
    private final Path path;
    // Null for a file that may be overwritten.
    private final String stream;
    private final FSDataOutputStream file;
    private boolean ended = false;

    Upload(Path path, String stream, FSDataOutputStream file) {
      super(file);
      this.path = fs().makeQualified(path);
      this.stream = stream;
      this.file = file;
    }

    @Override
    public synchronized void close() throws IOException {
      if (ended) {
        return;
      }
      ended = true;
      try {
        file.close();
      } catch (InterruptedIOException e) {
        throw e;
      } catch (IOException e) {
        if (stream == null) {
          throw e;
        }
        checkCreated(e);
      }
      if (folder.equals(path.getParent())) {
        names.add(path.getName());
      }
    }

    @Override
    public synchronized void cancel() {
      if (!ended) {
        ended = true;
        file.abort();
      }
    }

    /**
     * The file may be there after a failure: the answer to its PUT was lost, and S3A sent it again.
     * Equal bytes would not do: two runs write the same bytes to commits/N.
     */
    private void checkCreated(IOException failure) throws IOException {
      byte[] found;
      try {
        found = fs().getXAttr(path, "header." + STREAM);
      } catch (IOException e) {
        // It is absent, or nobody can tell.
        failure.addSuppressed(e);
        throw failure;
      }
      if (found != null && stream.equals(new String(found, StandardCharsets.UTF_8))) {
        return;
      }
      IOException exists =
          new FileAlreadyExistsException(path + " exists: another run of its query created it");
      exists.initCause(failure);
      throw exists;
    }
  }

  /** Call this; what it throws is not declared, as the interface in Scala declares nothing. */
  private static <T> T unchecked(Callable<T> call) {
    try {
      return call.call();
    } catch (Exception e) {
      throw S3CheckpointFileManager.<RuntimeException>asIs(e);
    }
  }

  @SuppressWarnings("unchecked")
  private static <E extends Exception> E asIs(Exception e) throws E {
    throw (E) e;
  }
}
