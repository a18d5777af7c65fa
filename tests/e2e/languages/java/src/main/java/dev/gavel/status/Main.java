package dev.gavel.status;

import com.google.rpc.ErrorInfo;
import com.google.rpc.Status;
import dev.gavel.v1.GetStatusRequest;
import dev.gavel.v1.GetStatusResponse;
import dev.gavel.v1.ProjectionServiceGrpc;
import dev.gavel.v1.ProjectionServiceGrpc.ProjectionServiceBlockingStub;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/**
 * Asks a server for the status of a bus, and for that of a bus that does not exist. Prints the answer and the detail of the error as one line
 * of JSON. Arguments: address, file of authorities, file of the token, bus, missing bus.
 */
public final class Main {
  private static final long CALL_SECONDS_MAX = 20;
  private static final Metadata.Key<String> AUTHORIZATION = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private Main() {}

  public static void main(String[] arguments) throws IOException {
    var authorities = Path.of(arguments[1]).toFile();
    var metadata = new Metadata();
    metadata.put(AUTHORIZATION, "Bearer " + Files.readString(Path.of(arguments[2])).strip());
    ManagedChannel channel =
        Grpc.newChannelBuilder(arguments[0], TlsChannelCredentials.newBuilder().trustManager(authorities).build())
            .intercept(MetadataUtils.newAttachHeadersInterceptor(metadata))
            .build();
    try {
      System.out.println(ask(ProjectionServiceGrpc.newBlockingStub(channel), arguments[3], arguments[4]));
    } finally {
      channel.shutdownNow();
    }
  }

  private static String ask(ProjectionServiceBlockingStub projections, String bus, String missing) throws IOException {
    GetStatusResponse answer = getStatus(projections, bus);
    try {
      getStatus(projections, missing);
    } catch (StatusRuntimeException error) {
      Status status = StatusProto.fromThrowable(error);
      for (var detail : status.getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          ErrorInfo info = detail.unpack(ErrorInfo.class);
          return String.format(
              "{\"head\": %d, \"code\": \"%s\", \"domain\": \"%s\", \"reason\": \"%s\"}",
              answer.getHeadSequenceNumber(), error.getStatus().getCode(), info.getDomain(), info.getReason());
        }
      }
      throw error;
    }
    throw new IllegalStateException("bus " + missing + " exists");
  }

  private static GetStatusResponse getStatus(ProjectionServiceBlockingStub projections, String bus) {
    return projections
        .withDeadlineAfter(CALL_SECONDS_MAX, TimeUnit.SECONDS)
        .getStatus(GetStatusRequest.newBuilder().setBus(bus).build());
  }
}
