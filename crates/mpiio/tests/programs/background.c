/* Begins a write and reads of bytes that somebody else has locked, and then waits for them by all calls that wait for requests.
 *
 *   background FILE
 *
 * The file is to have 4,096 times the same byte. Prints "begun" when the accesses have begun, and "done" when they are done. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                             \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);           \
            MPI_Abort(MPI_COMM_WORLD, 1);                                             \
        }                                                                             \
    } while (0)

enum { HALF = 2048, READS = 4, REQUESTS = READS + 2 };

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc < 2) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_File file;
    EXPECT(!MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    EXPECT(!MPI_File_set_atomicity(file, 1));
    /* Every other byte in memory is written. */
    char memory[2 * HALF], spread[2 * HALF], back[HALF], seen[READS][HALF], received = 0, sent = 1;
    for (int byte = 0; byte < 2 * HALF; byte++) memory[byte] = byte % 2 ? '-' : 'a' + byte / 2 % 26;
    MPI_Datatype other;
    MPI_Type_vector(HALF, 1, 2, MPI_CHAR, &other);
    MPI_Type_commit(&other);
    MPI_Request requests[REQUESTS];
    MPI_Status statuses[REQUESTS];
    EXPECT(!MPI_File_iwrite_at(file, 0, memory, 1, other, &requests[0]));
    for (int byte = 0; byte < 2 * HALF; byte++) spread[byte] = '-';
    EXPECT(!MPI_File_iread_at(file, HALF, spread, 1, other, &requests[1]));
    MPI_Type_free(&other);
    for (int read = 1; read < READS; read++)
        EXPECT(!MPI_File_iread_at(file, HALF, seen[read], HALF, MPI_CHAR, &requests[1 + read]));
    /* Another kind of request among them. */
    EXPECT(!MPI_Irecv(&received, 1, MPI_CHAR, 0, 0, MPI_COMM_SELF, &requests[REQUESTS - 1]));
    int is_done = 1, index = -1, count = -1, completed = -1, indices[REQUESTS];
    EXPECT(!MPI_Testall(REQUESTS, requests, &is_done, statuses));
    EXPECT(!is_done);
    EXPECT(!MPI_Test(&requests[0], &is_done, &statuses[0]));
    EXPECT(!is_done);
    EXPECT(!MPI_Request_get_status(requests[1], &is_done, &statuses[0]));
    EXPECT(!is_done);
    EXPECT(!MPI_Testany(REQUESTS, requests, &index, &is_done, &statuses[0]));
    EXPECT(!is_done);
    EXPECT(!MPI_Testsome(REQUESTS, requests, &completed, indices, statuses));
    EXPECT(completed == 0);
#if MPI_VERSION > 4 || MPI_VERSION == 4 && MPI_SUBVERSION >= 1
    EXPECT(!MPI_Request_get_status_all(REQUESTS, requests, &is_done, statuses));
    EXPECT(!is_done);
#endif
    puts("begun");
    fflush(stdout);
    EXPECT(!MPI_Wait(&requests[0], &statuses[0]));
    EXPECT(!MPI_Get_count(&statuses[0], MPI_CHAR, &count) && count == HALF);
    EXPECT(!MPI_Waitany(REQUESTS, requests, &index, &statuses[0]));
    EXPECT(0 < index && index <= READS);
    EXPECT(!MPI_Get_count(&statuses[0], MPI_CHAR, &count) && count == HALF);
    EXPECT(!MPI_Waitsome(REQUESTS, requests, &completed, indices, statuses));
    EXPECT(0 < completed && completed < READS);
    EXPECT(!MPI_Send(&sent, 1, MPI_CHAR, 0, 0, MPI_COMM_SELF));
    EXPECT(!MPI_Waitall(REQUESTS, requests, statuses));
    EXPECT(received == 1);
    EXPECT(!MPI_File_read_at(file, 0, back, HALF, MPI_CHAR, MPI_STATUS_IGNORE));
    for (int byte = 0; byte < HALF; byte++) {
        EXPECT(back[byte] == 'a' + byte % 26);
        EXPECT(spread[2 * byte] == '.' && (byte == HALF - 1 || spread[2 * byte + 1] == '-'));
        for (int read = 1; read < READS; read++) EXPECT(seen[read][byte] == '.');
    }
    /* Tests find an access complete sooner or later. */
    EXPECT(!MPI_File_iwrite_at(file, 0, back, HALF, MPI_CHAR, &requests[0]));
    do EXPECT(!MPI_Test(&requests[0], &is_done, &statuses[0]));
    while (!is_done);
#if MPI_VERSION > 4 || MPI_VERSION == 4 && MPI_SUBVERSION >= 1
    for (int call = 0; call < 3; call++) {
        EXPECT(!MPI_File_iwrite_at(file, 0, back, HALF, MPI_CHAR, &requests[0]));
        do {
            if (call == 0) EXPECT(!MPI_Request_get_status_all(1, requests, &is_done, statuses));
            if (call == 1) EXPECT(!MPI_Request_get_status_any(1, requests, &index, &is_done, statuses));
            if (call == 2) EXPECT(!MPI_Request_get_status_some(1, requests, &is_done, indices, statuses));
        } while (!is_done);
        EXPECT(!MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
    }
#endif
    EXPECT(!MPI_File_close(&file));
    puts("done");
    MPI_Finalize();
    return 0;
}
