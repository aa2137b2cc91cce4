package sparkwal.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A version of a Delta table on S3 is put only if it is absent: by one PUT with If-None-Match, of
 * S3A's conditional create (hadoop-aws 3.4.2 or newer). Safe for any number of writers.
 */
public class S3ConditionalLogStore extends HadoopFileSystemLogStore {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

  public S3ConditionalLogStore(Configuration hadoopConf) {
    super(hadoopConf);
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
      throws IOException {
    // All of it first: a stream that is closed half-way would store half a version.
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      lines.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    byte[] body = lines.toByteArray();
    FileSystem fs = path.getFileSystem(hadoopConf);
    if (overwrite) {
      put(fs.create(path, true), body);
      return;
    }
    IOException failure = null;
    try {
      put((FSDataOutputStream) fs.createFile(path).must(CONDITIONAL, "true").build(), body);
    } catch (IOException e) {
      failure = e;
    }
    // S3A takes any 2xx for success, also the page of a proxy. So a version counts only if its
    // bytes are read back. After a failure it may be there too: a request whose answer was lost.
    // Delta draws an id for each version, so equal bytes are ours.
    byte[] found = read(fs, path, body.length + 1);
    if (Arrays.equals(found, body)) {
      return;
    }
    boolean isPart = found != null && Arrays.equals(found, Arrays.copyOf(body, found.length));
    if (failure != null && found != null && !isPart) {
      throw new FileAlreadyExistsException(path.toString());
    }
    if (failure != null && found == null) {
      throw failure;
    }
    String kept = found == null ? "it is not there" : isPart ? "it is cut off" : "it has other bytes";
    throw new IOException(
        "the store answered the PUT of " + path + ", and " + kept + ": a proxy may have answered"
            + " in the place of the store. Check what stands between Spark and the store"
            + (isPart ? ", and delete the file, which no reader of the table can read" : ""),
        failure);
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
    return false;
  }

  private static void put(FSDataOutputStream stream, byte[] body) throws IOException {
    stream.write(body);
    stream.close();
  }

  /** The first `most` bytes of a file; null where there is none. */
  private static byte[] read(FileSystem fs, Path path, int most) throws IOException {
    try (FSDataInputStream stream = fs.open(path)) {
      return stream.readNBytes(most);
    } catch (FileNotFoundException e) {
      return null;
    }
  }
}
