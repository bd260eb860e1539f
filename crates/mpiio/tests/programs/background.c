/* Begins a write and a read of bytes that somebody else has locked, and then waits for both.
 *
 *   background FILE
 *
 * The file is to have 4,096 times the same byte. Prints "begun" when both accesses have begun, and "done" when they are done. */
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

int main(int argc, char **argv) {
    enum { HALF = 2048 };
    int provided, is_done = 1, count = -1;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (argc < 2 || provided != MPI_THREAD_MULTIPLE) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_File file;
    EXPECT(!MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    EXPECT(!MPI_File_set_atomicity(file, 1));
    /* Every other byte in memory is written. */
    char memory[2 * HALF], back[HALF], read[HALF];
    for (int byte = 0; byte < 2 * HALF; byte++) memory[byte] = byte % 2 ? '-' : 'a' + byte / 2 % 26;
    MPI_Datatype other;
    MPI_Type_vector(HALF, 1, 2, MPI_CHAR, &other);
    MPI_Type_commit(&other);
    MPI_Request requests[2];
    MPI_Status statuses[2];
    EXPECT(!MPI_File_iwrite_at(file, 0, memory, 1, other, &requests[0]));
    EXPECT(!MPI_File_iread_at(file, HALF, read, HALF, MPI_CHAR, &requests[1]));
    MPI_Type_free(&other);
    EXPECT(!MPI_Testall(2, requests, &is_done, statuses));
    EXPECT(!is_done);
    puts("begun");
    fflush(stdout);
    EXPECT(!MPI_Waitall(2, requests, statuses));
    EXPECT(!MPI_Get_count(&statuses[0], MPI_CHAR, &count) && count == HALF);
    EXPECT(!MPI_Get_count(&statuses[1], MPI_CHAR, &count) && count == HALF);
    EXPECT(!MPI_File_read_at(file, 0, back, HALF, MPI_CHAR, MPI_STATUS_IGNORE));
    for (int byte = 0; byte < HALF; byte++) EXPECT(back[byte] == 'a' + byte % 26 && read[byte] == read[0]);
    EXPECT(read[0] != 'a');
    EXPECT(!MPI_File_close(&file));
    puts("done");
    MPI_Finalize();
    return 0;
}
